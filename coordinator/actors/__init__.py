"""The Ray actors that own a branch: publisher, write queues, reconciler, and what runs inside them."""
