"""Users' writes: loads and mutations, prepared and packed for the process that commits them."""
