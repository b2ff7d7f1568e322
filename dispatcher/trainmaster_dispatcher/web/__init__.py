"""The dashboard as it is served: addresses of its pages, and the files that ``scripts/build-web`` makes from ``dispatcher/web``."""
