"""How the bundled model is trained: one module a step, brought together by `train_tiny_v4.py`."""
