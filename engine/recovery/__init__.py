"""Recovery of the operations of crashed writers, and repair of tables that foreign writers changed."""
