"""Models with eyes, on paper: a vision tower, a projector and a language model, all in one `model`.

batches.py       what images add to a batch: pixels and the like, in the order in which a processor gives them
clip.py          CLIP's vision tower (transformers/models/clip/modeling_clip.py, `CLIPVisionModel`), and LLaVA, which
                 looks at what its last layer but one gives (transformers/models/llava/modeling_llava.py)
features.py      what a model with eyes does between its tower and its language model
gemma4.py        Gemma 4's vision tower: patches as rows of numbers, padded to as many as an image may have, whose
                 features are pooled by their places (transformers/models/gemma4/modeling_gemma4.py,
                 `Gemma4VisionModel`)
intern.py        InternVL: a tower with a first token of its own and scaled branches, whose features are folded four
                 into one (transformers/models/internvl/modeling_internvl.py)
llama4.py        Llama 4 with its vision tower: patches cut out and multiplied, positions as complex numbers, four
                 features folded into one (transformers/models/llama4/modeling_llama4.py,
                 `Llama4ForConditionalGeneration`)
mllama.py        Llama 3.2 Vision: tiles of an image in a tower whose layers are not recomputed, and layers of cross-
                 attention between those of the language model (transformers/models/mllama/modeling_mllama.py)
mllama_tower.py  Llama 3.2's vision tower: tiles of an image, and layers that are not recomputed
                 (transformers/models/mllama/modeling_mllama.py, `MllamaVisionModel`)
mrope.py         positions in time, height and width: Qwen's `get_rope_index`, and the rotation by them
parts.py         the model of several parts around the language model
pixtral.py       Pixtral's vision tower, which takes images of any size, all of a batch as one row of patches
                 (transformers/models/pixtral/modeling_pixtral.py), and Mistral 3, which merges squares of patches
                 into a token (transformers/models/mistral3/modeling_mistral3.py)
qwen2.py         Qwen2-VL: a tower whose patches see all of their image
qwen2_5.py       Qwen2.5-VL: windows in the tower, and positions in time, height and width
qwen3.py         Qwen3-VL, also with experts: learned positions that are interpolated, and features of three depths of
                 the tower
qwen3_5.py       Qwen3.5 with its vision tower, which is Qwen3-VL's without features of other depths
siglip.py        SigLIP's vision tower, and what CLIP's has in common with it
smolvlm.py       SmolVLM: tiles of an image in a tower like SigLIP's, whose positions are counted for each, and
                 features that are put among tokens by their places (transformers/models/smolvlm/modeling_smolvlm.py)
text.py          Models with eyes around a language model of any family, which config.json names
windows.py       Attention of a tower within parts of its patches: the windows of an image, or each image and frame by
                 itself

What a family's file holds (`parts.WithParts` says it in code):

- The class that `FILES` of families/__init__.py lists under the outermost `model_type`, a `WithParts` together with the
  family's causal language model. `parts_class` is what transformers calls `XModel`: it has the children of the real one
  under their real names and in their order (adapters and shards go by names), one of them `language_model`, and
  `forward(input_ids, attention_mask, **images)`. `images` are the tensors of `Pictures.extras` (job/images) by name, on
  the card; without them the same forward pass runs on text, and the tower is held and does not run. How many images
  there are and what grids they have, which the real code reads from the card, is in `machine.pictures`, of each row. It
  gives hidden states, or a tuple of these and what else the outputs hold until the loss is there.
- `towers()`: models of their own beside the language model; each has `layers()`, those that are checkpointed
  (transformers' `GradientCheckpointingLayer`), and `input_embedding()`, the module whose result
  `enable_input_require_grads` makes want a gradient (its `_input_embed_layer`), with `gives_gradient`.
- `tower_paths`, `projector_paths`: beginnings of the paths of modules that are the tower and the projector; all else is
  the language model. The longest wins, so that a projector may lie in the tower. `vision.trained` goes by these.
- `counts_labels`: transformers' `accepts_loss_kwargs`, whether the Trainer gives it the number of labels.

What the family's processor makes of images is a file of job/images, listed in its `FILES`. Modules whose path has one
of the names `TOWERS` of tape/layers.py are no layers of the language model, whatever numbers they have.
"""
