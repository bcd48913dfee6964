"""The synchronous half, made by scripts/synchronous.py."""
