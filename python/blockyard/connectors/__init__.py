"""For engines that give out their blocks themselves, vLLM and SGLang among them."""
