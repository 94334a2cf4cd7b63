"""Who may do what: principals, credentials, ACLs, and the decision over a request. Pure."""
