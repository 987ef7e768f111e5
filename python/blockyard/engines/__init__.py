"""The modules that flags of vLLM and SGLang name; `blockyard.connectors` has what is in them."""
