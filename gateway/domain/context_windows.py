"""The context windows of well-known models, in tokens: the upper bound of a prompt, whatever a provider adds.

The table is written by scripts/update_context_windows.py from genai-prices (MIT License, Copyright (c) Pydantic
Services Inc.). A name that ends with ``*`` is the beginning of names.
"""

from functools import lru_cache

from gateway.domain.model_name import normalize_name, split_release

_WINDOW_TABLE = """\
512 bge-base-en-v1-5 databricks-bge-large-en llama-prompt-guard-2-22m llama-prompt-guard-2-86m system.ai.bge-large-en
1024 trio-spark-v1-3
4000 orpheus-arabic-saudi orpheus-v1-english
4096 command-light* mythomax-l2-13b nous-hermes-llama2-13b openchat-7b openhermes-2-5-mistral-7b
6144 remm-slerp-l2-13b
8000 codestral-embed codestral-embed-2505 glm-4-airx weaver
8192 bge-m3 bge-multilingual-gemma2 c4ai-aya-expanse-8b computer-use* databricks-gte-large-en deepseek-ocr-2 ft
 gemini-2-5-flash-lite-preview-tts gemini-2-5-flash-preview-tts gemini-2-5-flash-tts gemini-2-5-pro-preview-tts
 gemini-2-5-pro-tts gemini-embedding-2 gemini-embedding-2-preview gemma-2-27b-it gemma-2-2b-it gemma-2-2b-it-fast
 gemma-2-9b-it gemma-2-9b-it-fast gpt-4 gpt-4-0314 gpt-4-0613 hermes-2-pro-llama-3-8b hermes-2-pro-llama-3-8b-fast
 hy-mt2-1-8b hy-mt2-30b-a3b hy-mt2-7b l3-70b-euryale-v2-1 l3-70b-euryale-v2-1-fast l3-8b-lunaris l3-8b-lunaris-v1
 l3-8b-lunaris-v1-fast l3-8b-stheno-v3-2 l3-8b-stheno-v3-2-fast l3-lunaris-8b l31-70b-euryale-v2-2 llama-3-70b-instruct
 llama-3-8b-instruct llama3-70b-instruct llama3-8b-instruct meta-llama-3-70b-instruct meta-llama-3-70b-instruct-fast
 meta-llama-3-8b-instruct meta-llama-3-8b-instruct-fast mistral-embed mistral-embed-2312 moonshot-v1-8k
 moonshot-v1-8k-vision-preview system.ai.gte-large-en text-embedding-3-large text-embedding-3-small text-embedding-ada
 text-embedding-ada-002 text-embedding-ada-002-v2 titan-embed-text titan-embed-text-v1 titan-embed-text-v2
16000 gpt-4o-mini-realtime* gpt-4o-mini-transcribe gpt-4o-transcribe gpt-4o-transcribe-diarize
16384 llama-3-1-8b-instruct-max mistral-ocr-2512 mistral-ocr-2512-completion mistral-ocr-4 mistral-ocr-4-0
 mistral-ocr-4-0-completion mistral-ocr-4-1 mistral-ocr-4-1-completion mistral-ocr-4-completion paddleocr-vl phi-4
 qwen-mt-plus reka-edge reka-edge-2603 voxtral-mini-2602 voxtral-mini-latest
16385 gpt-3-5-turbo gpt-3-5-turbo-0125 gpt-3-5-turbo-0613 gpt-3-5-turbo-1106 gpt-3-5-turbo-16k gpt-3-5-turbo-16k-0613
 gpt-3-5-turbo-instruct* gpt-35-turbo gpt-35-turbo-16k gpt-35-turbo-16k-0613
24000 llama-3-3-70b-instruct-fp8-fast
30000 ernie-4-5-vl-28b-a3b-pt ernie-4-5-vl-28b-a3b-pt-fast
32000 glm-4-32b-0414 glm-4-32b-0414-fast gpt-4-32k gpt-4-32k-0314 gpt-4-32k-0613 gpt-4o-realtime* gpt-realtime
 gpt-realtime-1-5 jev-1-13 jev-1-13-0 jev-1-14 jev-1-14-0 jev-latest jev-preview mistral-7b-instruct
 mistral-7b-instruct-v0 mistral-large-2402 mistral-small-2402 mixtral-8x7b-instruct mixtral-8x7b-instruct-v0
 moondream3-1-9b-a2b moondream3-preview qwen-2-5-72b-instruct qwen-sea-lion-v4-32b-it qwen-sea-lion-v4-32b-it-fast
 qwen2-5-72b-instruct qwen2-5-72b-instruct-fast voxtral-mini-3b-2507
32768 aion-rp-llama-3-1-8b apertus-70b-instruct-2509 apertus-70b-instruct-2509-fast apertus-8b-instruct-2509
 apertus-8b-instruct-2509-fast gemini-1-0-pro gemini-1-0-pro-vision-001 gemini-pro gemma-3n-e4b-it gemma-3n-e4b-it-fast
 grok-2 grok-2-1212 grok-2-latest grok-2-vision grok-2-vision-1212 grok-2-vision-latest llama-3-2-3b-instruct
 llama3-1-8b* magnum-v4-72b mistral-saba mistral-saba-2502 mistral-small-24b-instruct-2501 mixtral-8x7b-instruct-v0-1
 moonshot-v1-32k moonshot-v1-32k-vision-preview perceptron-mk1 phi-4-reasoning phi-4-reasoning-plus qwen-2-5-7b-instruct
 qwen-2-5-coder-32b-instruct qwen-2-7b-instruct qwen-2-vl-72b-instruct qwen2-5-7b-instruct qwen2-5-7b-instruct-fast
 qwen2-5-coder-3b-instruct qwen2-5-coder-3b-instruct-fast qwen2-5-coder-7b qwen2-5-coder-7b-fast qwen2-5-vl-72b-instruct
 qwen2-5-vl-72b-instruct-fast qwen2-5-vl-7b-instruct qwen2-5-vl-7b-instruct-fast qwen3-embedding-8b rnj-1-instruct
 rnj-1-instruct-fast skyfall-36b-v2 tev1-4b-experimental voxtral-small-24b-2507 voxtral-small-2507 voxtral-small-latest
36864 perceptron-mk1-5
40960 qwen3-14b qwen3-14b-fast qwen3-235b-a22b-fast qwen3-30b-a3b qwen3-30b-a3b-fast qwen3-8b-fast
60288 mistral-nemo
64000 clef-omni community deepseek-r1* deepseek_v3 m2-her
65535 wizardlm-2-8x22b wizardlm-2-8x22b-fast
65536 alia-40b-instruct-2606 alia-40b-instruct-2606-fast autoglm-phone-9b-multilingual
 autoglm-phone-9b-multilingual-fast clef clef-flash gemini-3-1-flash-lite-image gemini-nano-banana-2-1 glm-4-5v
 glm-4-5v-fast minimax-m2-her mistral-7b-instruct-v0-3 mistral-nemo-instruct-2407 mixtral-8x22b-instruct
 olmo-3-32b-think qwen-3-8-27b* qwen3-omni-30b-a3b-thinking reka-flash-3
81920 morph-v3-fast
110000 gemma-3-27b-it-fast
120000 ernie-4-5-21b-a3b ernie-4-5-21b-a3b-pt ernie-4-5-21b-a3b-pt-fast
123000 ernie-4-5-300b-a47b-base-pt ernie-4-5-300b-a47b-base-pt-fast ernie-4-5-vl-424b-a47b
 ernie-4-5-vl-424b-a47b-base-pt ernie-4-5-vl-424b-a47b-base-pt-fast
128000 c4ai-aya-expanse-32b chatgpt-4o-latest command-r-08-2024 command-r-plus-08-2024 command-r7b-12-2024
 databricks-gemma-3-12b databricks-gpt-oss-120b databricks-gpt-oss-20b databricks-meta-llama-3-1-8b-instruct
 databricks-meta-llama-3-3-70b-instruct deepseek-r1-0528-qwen3-8b dolphin-mistral-24b-venice-edition embed-v4-0
 glm-4-air glm-4-assistant glm-4-flashx-250414 glm-4-plus gpt-4-0125-preview gpt-4-1106-preview
 gpt-4-1106-vision-preview gpt-4-o-preview gpt-4-turbo gpt-4-turbo-0125-preview gpt-4-turbo-preview gpt-4-vision-preview
 gpt-4o gpt-4o-audio-preview* gpt-4o-mini gpt-4o-mini-audio* gpt-4o-mini-search-preview gpt-4o-search-preview gpt-5-3
 gpt-5-3-chat gpt-5-3-chat-latest gpt-audio gpt-audio-1-5 gpt-audio-mini gpt-oss-120b-1 gpt-oss-20b-1 gpt-realtime-2
 gpt-realtime-2-1 lfm-2-5-2-6b lfm-2-5-24b-a2b llama-3-3-70b* llama3-1-70b-instruct llama3-1-8b-instruct
 llama3-2-11b-instruct llama3-2-1b-instruct llama3-2-3b-instruct llama3-2-90b-instruct llama3-3-70b-instruct
 magistral-small-2509 mercury-2 ministral-3-14b-instruct ministral-3-3b-instruct ministral-3-8b-instruct mistral-large
 mistral-large-2407 mistral-large-2411 mistral-small-3-1-24b-instruct mistral-small-3-1-24b-instruct-2503
 nemotron-nano-9b nemotron-nano-9b-v2 nova-micro nova-micro-v1 o1-mini o1-preview palmyra-x4 pixtral-large-2502
 qwen2p5-vl-72b-instruct qwen3-coder-480b-a35b r1 schematron-v2-small schematron-v2-turbo sonar sonar-deep-research
 sonar-reasoning-pro system.ai.gemma-3-12b system.ai.gpt-oss-120b system.ai.gpt-oss-20b
 system.ai.meta-llama-3-1-8b-instruct system.ai.meta-llama-3-3-70b-instruct ui-tars-1-5-7b uncensored
131000 gemma-3-27b-it granite-4-0-h-micro llama-3-2-1b-instruct llama-v3p1-8b-instruct
131072 aion-2-0 aion-3-0 aion-3-0-mini apriel-1-6-15b-thinker apriel-1-6-15b-thinker-fast baichuan-m2-32b cerebras
 cobuddy cydonia-24b-v4-1 deepseek-r1-distill-llama-70b deepseek-r1-distill-llama-70b-fast deepseek-r1-distill-llama-8b
 deepseek-r1-distill-llama-8b-fast deepseek-r1-distill-qwen-1-5b deepseek-r1-distill-qwen-1-5b-fast
 deepseek-r1-distill-qwen-14b deepseek-r1-distill-qwen-14b-fast deepseek-r1-distill-qwen-32b
 deepseek-r1-distill-qwen-32b-fast deepseek-r1-distill-qwen-7b deepseek-r1-distill-qwen-7b-fast deepseek-v3
 deepseek-v3-1 deepseek-v3-1-fast deepseek-v3-1-terminus-fast deepseek-v3-fast gemini-3-8-live* gemini-omni-1-1-flash
 gemini-omni-1-2-flash gemma-3-12b-it gemma-3-4b-it gemma-4-31b* gemma-sea-lion-v4-27b-it gemma-sea-lion-v4-27b-it-fast
 glm-4-5 glm-4-5-air glm-4-5-air-fast glm-4-5-air-fp8 glm-4-5-air-fp8-fast glm-4-5-fast glm-4-6v glm-4-6v-flash
 glm-4-6v-flash-fast gpt-oss-120b* gpt-oss-20b gpt-oss-20b-fast gpt-oss-safeguard-20b granite-4-1-8b granite-4-2-8b
 grok-3 grok-3-beta grok-3-fast grok-3-fast-beta grok-3-fast-latest grok-3-latest grok-3-mini grok-3-mini-beta
 grok-3-mini-fast grok-3-mini-fast-beta grok-3-mini-fast-latest grok-3-mini-latest hermes-3-llama-3-1-405b
 hermes-3-llama-3-1-70b hermes-4-405b hermes-4-405b-fast hermes-4-70b hermes-4-70b-fast hunyuan-a13b-instruct
 intellect-3-fp8 intellect-3-fp8-fast kimi-k2 kimi-k2-0711-preview kimi-k2-instruct kimi-k2-instruct-fast
 l3-3-euryale-70b l3-3-euryale-70b-v2-3 llama-3-1-70b-instruct llama-3-1-8b-instruct llama-3-1-8b-instruct-fast
 llama-3-3-70b-instruct llama-3-3-70b-instruct-fast llama-3-3-swallow-70b-instruct-v0-4
 llama-3-3-swallow-70b-instruct-v0-4-fast llama-3_1-nemotron-ultra-253b-v1 llama-3_1-nemotron-ultra-253b-v1-fast
 llama-4-maverick-17b-128e-instruct meta-llama-3_3-70b-instruct ministral-3b-2512 mistral-medium-3-1
 mistral-small-3-2-24b-instruct-2506 moonshot-v1-128k moonshot-v1-128k-vision-preview muse-glimmer-30b
 muse-glimmer-30b-fast nemotron-3-5-content-safety nvidia-nemotron-nano-12b-v2 nvidia-nemotron-nano-12b-v2-fast
 phi-3-5-mini-128k-instruct phi-3-medium-128k-instruct phi-3-mini-128k-instruct phi-4-mini-instruct
 phi-4-multimodal-instruct qwen-3-32b* qwen2-5-coder-32b-instruct qwen2-5-coder-32b-instruct-fast
 qwen2-5-coder-7b-instruct qwen2-5-coder-7b-instruct-fast qwen3-235b-a22b qwen3-32b qwen3-32b-fast qwen3-8b
 qwen3-vl-235b-a22b-instruct qwen3-vl-235b-a22b-instruct-fast qwen3-vl-235b-a22b-thinking
 qwen3-vl-235b-a22b-thinking-fast qwen3-vl-30b-a3b-instruct qwen3-vl-30b-a3b-instruct-fast qwen3-vl-30b-a3b-thinking
 qwen3-vl-30b-a3b-thinking-fast qwen3-vl-32b-instruct qwen3-vl-8b-thinking qwq-32b qwq-32b-fast solar-pro-3
 virtuoso-large zai-glm-4-7*
160000 deepseek-prover-v2-671b deepseek-prover-v2-671b-fast
163840 cogito-671b-v2-1 cogito-671b-v2-1-fast cogito-671b-v2-1-fp8 cogito-671b-v2-1-fp8-fast deepseek-r1
 deepseek-r1-0528 deepseek-r1-0528-fast deepseek-r1-fast deepseek-v3-0324 deepseek-v3-0324-fast deepseek-v3-1-terminus
 deepseek-v3-2 deepseek-v3-2-exp deepseek-v3-2-exp-fast deepseek-v3-2-fast deepseek-v3p2 llama-guard-4-12b mai-ds-r1
192000 command-a-plus command-a-plus-05-2026
200000 claude-2* claude-haiku-3* claude-haiku-4-5* claude-opus-3* claude-opus-4* claude-sonnet-3* claude-sonnet-4*
 codex-mini codex-mini-latest composer-2-5 composer-2-5-fast glm-4-7-flash glm-4-7-flash-fast glm-4-7-flashx o1 o1-pro
 o3 o3-deep-research o3-mini o3-mini-high o3-pro o4-mini o4-mini-deep-research o4-mini-high
 regional.anthropic.claude-3-5-haiku regional.anthropic.claude-3-5-sonnet regional.anthropic.claude-3-7-sonnet
 regional.anthropic.claude-3-haiku regional.anthropic.claude-3-opus regional.anthropic.claude-3-sonnet
 regional.anthropic.claude-haiku-4-5 regional.anthropic.claude-opus-4 regional.anthropic.claude-opus-4-1
 regional.anthropic.claude-opus-4-5 regional.anthropic.claude-sonnet-4 regional.anthropic.claude-sonnet-4-5 sonar-pro
 sonar-pro-search
202000 nvidia-nemotron-3-ultra-550b-a55b
202752 glm-4-7-fp8 glm-4-7-fp8-fast glm-4p7 glm-5-turbo glm-5v-turbo
202800 glm-5-fast
204800 glm-4-6 glm-4-6-fast glm-4-7 glm-4-7-fast glm-4-7-h glm-5-1 minimax-m2 minimax-m2-1 minimax-m2-1-fast
 minimax-m2-1-highspeed minimax-m2-5 minimax-m2-5-fast minimax-m2-5-highspeed minimax-m2-7 minimax-m2-7-fast
 minimax-m2-7-highspeed minimax-m2-fast minimax-m2p1
205000 glm-5
256000 codestral codestral-2501 codestral-2508 codestral-latest command-a command-a-03-2025 databricks-qwen35-122b-a10b
 devstral-2-123b grok-4 grok-4-0709 grok-4-5-fast grok-4-6-fast grok-4-latest grok-build-0-1 grok-code-fast
 grok-code-fast-1 grok-code-fast-1-0825 mai-code-1-1-flash mai-code-1-flash-picker mistral-large-3-675b-instruct
 nemotron-3-nano-omni-30b-a3b-reasoning nemotron-nano-3-30b nemotron-super-3-120b north-mini-code qwen3-coder-30b-a3b
 qwen3-vl-235b-a22b relace-apply-3 relace-search system.ai.qwen35-122b-a10b
260000 mercury-2-5
262000 nemotron-3-ultra-nvfp4
262144 aion-3-5 aion-3-5-mini devstral-2512 flint-v1-0 gemma-4-26b-a4b-it gemma-4-26b-a4b-it-fast
 gemma-4-26b-a4b-it-maas gemma-4-31b-it gemma-4-31b-it-fast glimpse hy3 hy3-preview kimi-k2-0905 kimi-k2-0905-preview
 kimi-k2-5* kimi-k2-6* kimi-k2-7-code kimi-k2-7-code-fast kimi-k2-7-code-highspeed kimi-k2-instruct-0905
 kimi-k2-instruct-0905-fast kimi-k2-thinking kimi-k2-thinking-fast kimi-k2-thinking-turbo kimi-k2-turbo* kimi-k2p5
 kimi-k2p6-fast kimi-k2p7-code kimi-k2p7-code-fast laguna-xs-2-1 lfm-3-1-7b ling-3-0-flash ling-3-0-flash-fast
 ling-3-0-flash-fin ling-3-0-flash-fin-fast ling-3-0-flash-sante ling-3-0-flash-vl ling-3-0-flash-vl-fast ling-3-0-tiny
 ling-3-1-flash ling-3-1-flash-fast macaron-v1-tall mimo-v2-flash mimo-v2-flash-fast ministral-14b-2512
 ministral-8b-2512 mistral-large-2512 mistral-medium-2604 mistral-medium-3 mistral-medium-3-5 mistral-small-2603
 morph-v3-large namazu nemotron-3-nano-30b-a3b nemotron-3-super-120b-a12b nemotron-3-ultra
 nemotron-sea-lion-v4-8-120b-a12b nemotron-sea-lion-v4-8-120b-a12b-fast nex-n2-5-mini nex-n2-5-pro
 nvidia-nemotron-3-5-super-vl nvidia-nemotron-3-ultra-550b-a55b-nvfp4 nvidia-nemotron-3-ultra-550b-a55b-nvfp4-fast
 pareto-26-9 pplx-decider-v1-1-27b pplx-decider-v1-27b qwen-sea-lion-v4-5-27b-it qwen-sea-lion-v4-5-27b-it-fast
 qwen3-235b-a22b-instruct-2507 qwen3-235b-a22b-instruct-2507-fast qwen3-235b-a22b-thinking-2507
 qwen3-235b-a22b-thinking-2507-fast qwen3-30b-a3b-instruct-2507 qwen3-30b-a3b-instruct-2507-fast
 qwen3-30b-a3b-thinking-2507 qwen3-30b-a3b-thinking-2507-fast qwen3-4b-instruct-2507 qwen3-4b-instruct-2507-fast
 qwen3-4b-thinking-2507 qwen3-4b-thinking-2507-fast qwen3-5-122b-a10b qwen3-5-122b-a10b-fast qwen3-5-27b
 qwen3-5-27b-fast qwen3-5-35b-a3b qwen3-5-35b-a3b-fast qwen3-5-397b-a17b qwen3-5-397b-a17b-fast qwen3-5-9b
 qwen3-5-9b-fast qwen3-6-27b qwen3-6-27b-fast qwen3-6-35b qwen3-6-35b-a3b qwen3-6-max-preview qwen3-8-27b-fp8
 qwen3-coder-30b-a3b-instruct qwen3-coder-30b-a3b-instruct-fast qwen3-coder-480b-a35b-instruct
 qwen3-coder-480b-a35b-instruct-fast qwen3-coder-480b-a35b-instruct-fp8 qwen3-coder-480b-a35b-instruct-fp8-fast
 qwen3-coder-next qwen3-coder-next-fast qwen3-coder-next-fp8 qwen3-coder-next-fp8-fast qwen3-max qwen3-max-thinking
 qwen3-next-80b-a3b-instruct qwen3-next-80b-a3b-instruct-fast qwen3-next-80b-a3b-thinking
 qwen3-next-80b-a3b-thinking-fast qwen3-vl-235b-a22b-instruct-fp8 qwen3-vl-8b-instruct qwen3-vl-8b-instruct-fast
 qwen3p7-plus sakana-namazu seed-1-6 seed-1-6-flash seed-2-0-code seed-2-0-lite seed-2-0-mini seed-2-1-turbo
 step-3-5-flash step-3-7-flash ternary-bonsai-2-27b ternary-bonsai-2-9b ternary-bonsai-27b-awq-4bit
 ternary-bonsai-27b-awq-4bit-fast ternary-bonsai-27b-gguf ternary-bonsai-27b-gguf-fast trinity-large-thinking
 xing4-0-29b-a4b
272000 gpt-5-4-image-2
300000 nova-lite nova-lite-v1 nova-pro nova-pro-v1
400000 gpt-5 gpt-5-1 gpt-5-1-chat gpt-5-1-chat-latest gpt-5-1-codex gpt-5-1-codex-max gpt-5-1-codex-mini gpt-5-1-mini
 gpt-5-2 gpt-5-2-chat gpt-5-2-chat-latest gpt-5-2-codex gpt-5-2-pro gpt-5-3-codex gpt-5-4-mini gpt-5-4-nano gpt-5-chat
 gpt-5-chat-latest gpt-5-codex gpt-5-image gpt-5-image-mini gpt-5-mini gpt-5-nano gpt-5-nano-* gpt-5-pro gpt-chat-latest
 gpt-mini-latest
500000 grok-4-5 grok-4-5-latest grok-4-6 grok-4-6-latest grok-4-7 grok-4-7-fast grok-4-7-latest grok-latest
512000 dots-3-note-preview
524288 inkling-fast solar-mini4 solar-pro4
890000 llama-4-scout-17b-16e-instruct llama-4-scout-17b-16e-instruct-fast
1000000 claude-fable-5 claude-fable-5-1 claude-fable-5-1-v1* claude-fable-5-2 claude-fable-5-2-v1* claude-fable-5-v1*
 claude-fable-latest claude-haiku-5-5* claude-haiku-latest claude-mythos-5-2 claude-mythos-5-2-v1* claude-opus-4-6*
 claude-opus-4-7* claude-opus-4-8* claude-opus-5* claude-opus-latest claude-sonnet-4-5 claude-sonnet-4-6*
 claude-sonnet-5* claude-sonnet-latest databricks-glm-5-2 databricks-inkling databricks-kimi-k3 deepseek-chat*
 deepseek-flash deepseek-reasoner* deepseek-v4-flash* deepseek-v4-pro* extract fugu-max fugu-ultra fugu-ultra-v2
 gemini-1-5-flash gemini-1-5-pro gemini-2-0-flash gemini-2-0-flash-lite gemini-2-5-flash-image
 gemini-2-5-flash-image-preview gemini-2-5-flash-lite-preview* gemini-3-1-flash-image gemini-3-1-flash-image-preview*
 gemini-3-1-flash-lite-preview* gemini-3-5-flash-* gemini-3-6-flash* gemini-3-7-flash* gemini-3-8-flash*
 gemini-3-flash-preview-* gemini-3-pro-image-preview* gemini-flash-1-5-8b gemini-flash-lite-latest glm-4-long
 gpt-5-5-chat gpt-5-5-chat-latest gpt-5-5-codex gpt-5-6-luna* gpt-5-6-sol* gpt-5-6-terra* gpt-6-1-sol* gpt-6-luna*
 gpt-6-sol* grok-4-20-0309-non-reasoning grok-4-20-0309-reasoning grok-4-20-multi-agent-0309
 grok-4-20-multi-agent-beta-0309 grok-4-20-multi-agent-beta-latest grok-4-20-multi-agent-latest grok-4-3 grok-4-3-latest
 hy4-preview-fast kimi-k3-1 llama4-maverick-17b-instruct llama4-maverick-instruct-basic mercury-3 minimax-m1
 minimax-m1-80k minimax-m1-80k-fast minimax-m3-1-flash-fast minimax-m3-fast nemotron-3-5-lightning
 nemotron-3-ultra-550b-a55b nova-2-lite nova-2-lite-v1 nova-2-sonic nova-premier nova-premier-v1 qwen-plus qwen3-5-flash
 qwen3-5-flash-02-23 qwen3-5-plus qwen3-5-plus-02-15 qwen3-6-flash qwen3-6-plus-04-02 qwen3-8-27b-decentered
 qwen3-8-flash qwen3-8-flash-next qwen3-8-max-0902 qwen3-coder-flash qwen3-coder-plus regional.amazon.nova-2-lite
 regional.anthropic.claude-fable-5 regional.anthropic.claude-fable-5-1 regional.anthropic.claude-fable-5-2
 regional.anthropic.claude-haiku-5-5 regional.anthropic.claude-mythos-5-2 regional.anthropic.claude-opus-4-6
 regional.anthropic.claude-opus-4-7 regional.anthropic.claude-opus-4-8 regional.anthropic.claude-opus-5
 regional.anthropic.claude-opus-5-5 regional.anthropic.claude-sonnet-4-6 regional.anthropic.claude-sonnet-5
 regional.anthropic.claude-sonnet-5-5 regional.moonshotai.kimi-k3 regional.moonshotai.kimi-k3-1
 regional.openai.gpt-5-6-luna regional.openai.gpt-5-6-sol regional.openai.gpt-5-6-terra regional.openai.gpt-6-1-sol
 regional.openai.gpt-6-luna regional.openai.gpt-6-sol regional.zai.glm-5-3 summarize system.ai.glm-5-2 system.ai.inkling
 system.ai.kimi-k3
1000192 minimax-01
1010000 qwen3-8-2-4t-a95b-fast
1040000 glm-5p2 glm-5p2-fast glm-5p2-fast-us kimi-k3-us palmyra-x5
1047576 gpt-4-1 gpt-4-1-mini gpt-4-1-nano
1048000 beam-1-0 nvidia-nemotron-3-5-super-vl-120b-a12b
1048576 beam-1-0-501b-a23b crouton-alpha databricks-glm-5-3 databricks-glm-5-3-flash deepseek-flash-latest
 deepseek-pro-latest deepseek-v4-1-flash deepseek-v4-1-flash-1017 deepseek-v4-1-flash-1017-fast deepseek-v4-1-flash-dst
 deepseek-v4-1-flash-fast deepseek-v4-1-flash-p deepseek-v4-flash deepseek-v4-flash-0731 deepseek-v4-flash-0731-fast
 deepseek-v4-flash-0731-p deepseek-v4-flash-latest deepseek-v4-flash-vision-exp deepseek-v4-pro deepseek-v4-pro-0813
 deepseek-v4-pro-0813-fast deepseek-v4-pro-0813-p deepseek-v4-pro-fast ember-1 gemini-2-5-flash gemini-2-5-flash-latest
 gemini-2-5-flash-lite gemini-2-5-flash-preview-09-2025 gemini-2-5-pro gemini-2-5-pro-preview
 gemini-2-5-pro-preview-05-06 gemini-3-1-flash-lite gemini-3-1-flash-lite-preview gemini-3-1-pro-preview
 gemini-3-1-pro-preview-customtools gemini-3-5-flash gemini-3-5-flash-lite gemini-3-6-flash gemini-3-7-flash
 gemini-3-8-flash gemini-3-flash-preview gemini-3-pro-image gemini-4-argon gemini-4-argon-* gemini-flash-latest
 gemini-pro-latest glm-5-2 glm-5-2-fast glm-5-2-fp8 glm-5-3 glm-5-3-fast glm-5-3-flash-fast glm-5-3-flashx
 glm-5-3-flashx-legal glm-5-3-p glm-5-3-prime glm-flash-latest glm-latest hy4 hy4-preview inkling inkling-small kimi-k3
 kimi-k3-1-pro kimi-k3-1-pro-highspeed kimi-k3-fast kimi-k3-p kimi-latest laguna-s-2-1
 llama-4-maverick-17b-128e-instruct-fp8 llama-4-maverick-17b-128e-instruct-fp8-fast lyria-3-clip-preview
 lyria-3-pro-preview macaron-v1-venti mimo-v2-5 mimo-v2-5-fast mimo-v2-5-pro mimo-v2-5-pro-fast mimo-v2-6-flash-rl
 mimo-v2-6-flash-rl-fast mimo-v2-6-pro-rl mimo-v2-6-pro-rl-fast mimo-v2-6-pro-ultraspeed minimax-m3 minimax-m3-1-flash
 mistral-large-4 mistral-large-4-0 muse-spark-1-1 muse-spark-1-2 muse-spark-1-2-contributor muse-spark-1-3
 muse-spark-1-3-contributor muse-spark-open muse-spark-open-816b-a42b muse-wonder muse-wonder-1-0 nemotron-3-5-super-vl
 pareto-26-10 pareto-latest particle-1 qwen3-6-plus qwen3-7-flash qwen3-7-max qwen3-7-plus qwen3-8-2-4t-a95b qwen3-8-27b
 qwen3-8-27b-fast qwen3-8-flash-next-fp8 qwen3-8-flash-next-fp8-fast qwen3-8-max qwen3-8-max-prime qwen3-8-omni-flash
 ripple-65b-preview step-5-preview system.ai.glm-5-3 system.ai.glm-5-3-flash
1048756 longcat-2-0
1050000 gpt-5-4 gpt-5-4-pro gpt-5-5 gpt-5-5-pro gpt-5-6 gpt-5-6-luna gpt-5-6-luna-pro gpt-5-6-sol gpt-5-6-sol-pro
 gpt-5-6-terra gpt-5-6-terra-pro gpt-6-1-sol gpt-6-1-sol-pro gpt-6-1-terra* gpt-6-astra* gpt-6-luna gpt-6-luna-pro
 gpt-6-sol gpt-6-sol-pro gpt-astra-latest gpt-latest gpt-luna-latest gpt-sol-latest gpt-terra-latest mimo-v2-6-flash
 mimo-v2-6-pro regional.openai.gpt-6-1-terra regional.openai.gpt-6-astra
1310720 glm-5-3-flash
2000000 gemini-pro-1-5 grok-4-1-fast grok-4-1-fast-non-reasoning grok-4-1-fast-non-reasoning-latest
 grok-4-1-fast-reasoning grok-4-1-fast-reasoning-latest grok-4-20 grok-4-20-multi-agent grok-4-fast
 grok-4-fast-non-reasoning grok-4-fast-non-reasoning-latest grok-4-fast-reasoning grok-4-fast-reasoning-latest
10000000 llama4-scout-17b-instruct
"""


@lru_cache(1_024)
def find_context_window(model: str) -> int:
    """Return the longest context window of ``model`` at any provider, in tokens; 0 if unknown."""
    windows_by_name, windows_by_prefix = _read_table()
    name = shorten_name(model)
    window = windows_by_name.get(name)
    return window or next((tokens for prefix, tokens in windows_by_prefix if name.startswith(prefix)), 0)


def shorten_name(model: str) -> str:
    """Return a model's normalized name without its date, its maker and the mark of a variant (``:free``)."""
    name = normalize_name(model).rpartition("/")[2]
    return split_release(name.partition(":")[0])[0].removesuffix("-20*")


@lru_cache(1)
def _read_table() -> tuple[dict[str, int], list[tuple[str, int]]]:
    """Return the context windows by name, and by the beginning of a name, with the longest beginning first."""
    windows_by_name: dict[str, int] = {}
    tokens = 0
    for word in _WINDOW_TABLE.split():
        if word.isdigit():
            tokens = int(word)
        else:
            windows_by_name[word] = tokens
    windows_by_prefix = [(name[:-1], tokens) for name, tokens in windows_by_name.items() if name.endswith("*")]
    return windows_by_name, sorted(windows_by_prefix, key=lambda entry: -len(entry[0]))
