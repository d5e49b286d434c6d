"""A config for a dataset: statistics -> rules -> YAML with a reason for each key.

The approach is from nnU-Net (Isensee et al. 2021, doi 10.1038/s41592-020-01008-z): settings are
derived from the data and the machine if possible, and fixed otherwise.
"""
