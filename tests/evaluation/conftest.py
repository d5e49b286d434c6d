"""Makes synthetic.py importable beside the tests."""
