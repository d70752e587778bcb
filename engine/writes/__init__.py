"""The writes that users make: loads and mutations, prepared and packed for whoever commits them."""
