"""The commands of `detlite`, a module for each: `main(arguments)` runs it and gives its status."""
