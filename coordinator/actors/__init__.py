"""The Ray actors that own a branch (publisher, table queues, reconciler), and the classes that run inside them."""
