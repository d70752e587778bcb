"""omniray: graphs of Lance tables, with one atomic commit over all of them for any number of writers."""
