"""Files: atomic writes, locks, the cache, downloads and safe pickles."""
