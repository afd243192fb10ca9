"""The description of the service for clients and people: written from the routes and their types."""
