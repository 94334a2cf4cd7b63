"""Authentication and authorization: principals, credentials, ACLs, and the decision about a request. Pure."""
