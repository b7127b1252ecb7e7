"""The store of an Alibaba Cloud Tablestore instance, over its HTTP interface."""
