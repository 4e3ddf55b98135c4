"""What one request is made of on its way: its state, its place, its pair, its retries."""
