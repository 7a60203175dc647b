"""From blocks to batches of tensors.

Read next: reader.py.
"""
