"""What tests of users' own writers stand on: a store, a graph with a coordinator, and fixtures for both."""
