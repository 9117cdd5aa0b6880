"""What a request refers to outside its body: URLs, the gateway's files, resources stored at a provider."""
