"""Other KV stores, run in their own interpreters: none is a dependency of this project."""
