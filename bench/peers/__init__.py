"""omniray beside its peers: closed-loop writer processes on the same store, in one run; `python -m bench.peers`."""
