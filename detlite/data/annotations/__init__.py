"""The only reader of annotation files: scan, normalize, judge, store, and views of the result."""
