"""The commands of the command line; what they serve and check is further down."""
