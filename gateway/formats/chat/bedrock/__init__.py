"""Amazon Bedrock's Converse API: requests, answers, and the binary event stream."""
