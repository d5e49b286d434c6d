"""Files: atomic writes, locks, the cache, types of files, downloads and safe pickles."""
