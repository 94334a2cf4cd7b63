"""The application's engine: what is required of it, its connections, its URL as shown, the meaning of its errors."""
