"""detlite as a part of other libraries' programs: a file for each of them."""
