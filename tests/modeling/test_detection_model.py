import pytest
import torch

from detlite.inference.optimize import optimize
from detlite.modeling.build import build_model
from detlite.modeling.optimize_for_training import optimize_for_training
from tests.modeling.family import ALL_SCORES


def test_targets_are_not_modified(tiny_config, make_batch):
    images, targets = make_batch(2, 1)
    before = [{name: torch.as_tensor(value).clone() for name, value in t.items()} for t in targets]
    build_model(tiny_config()).train()(images, targets)
    for target, old in zip(targets, before, strict=True):
        assert target.keys() == old.keys()
        assert all(torch.equal(torch.as_tensor(target[name]), old[name]) for name in old)


def test_detect_equals_forward_without_pasting(tiny_config, make_batch):
    model = build_model(tiny_config(*ALL_SCORES)).eval()
    images, _ = make_batch(2, 1)
    for compact, full in zip(model.detect(images), model(images), strict=True):
        assert compact.mask_probs.shape == (20, 28, 28)
        assert compact.keypoints is compact.keypoint_scores is None
        assert compact.valid.all()
        for name in ("boxes", "labels", "scores"):
            torch.testing.assert_close(getattr(compact, name), full[name])


def test_evaluation_mode_computes_gradients_and_detect_none(tiny_config, make_batch):
    model = build_model(tiny_config(*ALL_SCORES)).eval()
    image = make_batch(2)[0][0].float().div(255).requires_grad_()
    result = model([image])[0]
    for name in ("boxes", "scores", "masks"):
        (gradient,) = torch.autograd.grad(result[name].sum(), image, retain_graph=True)
        assert gradient.abs().sum() > 0, name
    assert not model.detect([image])[0].scores.requires_grad


def test_a_single_image_and_its_target(tiny_config, make_batch):
    model, (images, targets) = build_model(tiny_config()), make_batch(1)
    losses = []
    for arguments in ((images, targets), (images[0], targets[0])):
        torch.manual_seed(1)
        losses.append(model(*arguments))
    torch.testing.assert_close(*losses)
    assert len(model.eval()(images[0])) == 1


def test_weights_are_contiguous_until_they_are_optimized(tiny_config):
    model = build_model(tiny_config())
    assert all(value.is_contiguous() for value in model.state_dict().values())
    for faster in (optimize(model), optimize_for_training(model)):
        tensors = [*faster.parameters(), *faster.buffers()]
        kernels = [x for x in tensors if x.ndim == 4 and min(x.shape) > 1]
        assert len(kernels) > 10
        assert all(x.is_contiguous(memory_format=torch.channels_last) for x in kernels)


def test_functional_gradients_are_refused(tiny_config, make_batch):
    model, batch = build_model(tiny_config()), make_batch(1)

    def loss(parameters):
        return torch.func.functional_call(model, parameters, batch)["loss_box"]

    with pytest.raises(RuntimeError, match=r"torch\.func .* use torch\.autograd"):
        torch.func.grad(loss)(dict(model.named_parameters()))


def test_a_model_on_the_meta_device_says_how_to_load_weights(tiny_config, make_batch):
    images, _ = make_batch(1)
    state = build_model(tiny_config()).state_dict()

    def build(move):
        model = build_model(tiny_config("MODEL.DEVICE", "meta")).eval()
        model.load_state_dict(state, assign=True)
        return move(model)

    def build_in_context(_):
        with torch.device("meta"):
            return build_model(tiny_config())

    moves = [lambda m: m(images), lambda m: m.to("cpu"), lambda m: m.to_empty(device="cpu")]
    for make, move in [*((build, move) for move in moves), (build_in_context, None)]:
        with pytest.raises(RuntimeError, match="build it on its device and load the weights with"):
            make(move)


def test_detections_are_the_proposals_of_the_rpn(tiny_config, make_batch):
    images, _ = make_batch(2, 1)
    keys = ["MODEL.META_ARCHITECTURE", "ProposalNetwork", "MODEL.MASK_ON", False]
    network = build_model(tiny_config(*keys)).eval()
    result = network(images)
    batch = network.normalizer(images)
    with torch.no_grad():
        proposals = network.rpn.propose(network.rpn(network.backbone(batch.pixels)), batch, False)
    for index, detection in enumerate(result):
        assert set(detection) == {"boxes", "scores", "labels"}
        own = proposals[index][proposals.valid[index]]
        torch.testing.assert_close(detection["boxes"], own.boxes)
        torch.testing.assert_close(detection["scores"], own.scores.sigmoid())
        assert len(own.boxes) == 50  # FPN_POST_NMS_TOP_N_TEST
        assert (detection["labels"] == 1).all()
        assert (detection["scores"].diff() <= 0).all()
        assert ((detection["scores"] > 0) & (detection["scores"] < 1)).all()
