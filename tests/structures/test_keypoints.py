"""Test heat map cells, scaling and mirroring of keypoints."""

import pytest
import torch
from torchvision.models.detection.roi_heads import keypoints_to_heatmap

from detlite.structures.keypoints import doubtful_sides, flip_order, to_heatmap_cells, with_sides
from tests.builders import random_boxes


def test_cells_equal_torchvision():
    boxes = random_boxes(40, extent=50, sides=(0.3, 60))
    keypoints = torch.rand(40, 17, 3) * 110
    keypoints[..., 2] = torch.randint(0, 3, (40, 17))
    keypoints[:, 0, :2] = boxes[:, 2:]  # the far corner
    keypoints[:, 1, :2] = boxes[:, :2]
    expected, expected_valid = keypoints_to_heatmap(keypoints, boxes, 56)
    cells, valid = to_heatmap_cells(keypoints, boxes, 56)
    assert torch.equal(valid, expected_valid.bool())
    assert torch.equal(cells, expected)
    assert 40 < valid.sum() < 40 * 17


def test_flip_order_swaps_left_and_right():
    names = ["nose", "left_eye", "right_eye", "left_hip", "tail", "right_hip", "left_paw"]
    assert flip_order(names) == [0, 2, 1, 5, 4, 3, 6]
    assert flip_order([]) == []
    assert flip_order(["eye", "eye", "left_ear", "left_ear", "right_ear"]) == [0, 1, 2, 4, 3]


@pytest.mark.parametrize(
    "pair",
    ["Left eye/Right eye", "LEFT_EYE/RIGHT_EYE", "L_eye/R_eye", "eye_l/eye_r", "eye-L/eye-R",
     "eyeL/eyeR", "lEye/rEye", "LEye/REye", "eye.l.1/eye.r.1", "EyeLeft/EyeRight", "L/R",
     "Left_eye/right eye", "linkesAuge/rechtesAuge", "Ohr links/Ohr rechts",
     "linke Hand/Rechte Hand", "oeil_gauche/oeil_droit", "main gauche/main droite",
     "ojo_izquierdo/ojo_derecho",
     "mano izquierda/mano derecha", "occhio sinistro/occhio destro", "esquerda/direita"],
)  # fmt: skip
def test_sides_in_any_notation(pair):
    assert flip_order(["nose", *pair.split("/")]) == [0, 2, 1]


def test_letters_inside_of_words_are_not_sides():
    assert flip_order(["ear", "eal", "tail", "tair", "Roll", "Loll"]) == [0, 1, 2, 3, 4, 5]
    assert flip_order(["eye", "Eye", "EYE", "chain link", "chain right"]) == [0, 1, 2, 3, 4]


def test_names_that_may_have_sides_without_being_exchanged():
    names = ["L_eye", "R_eye", "LF paw", "RF paw", "left_ear", "nose", "tail", "ojo 1", "ojo 2"]
    assert doubtful_sides(names) == ["LF paw", "RF paw", "left_ear", "ojo 1", "ojo 2"]
    assert doubtful_sides(["nose", "left_eye", "right_eye", "head_top", "neck"]) == []


def test_pairs_can_be_named():
    names = ["ojo izq", "nariz", "ojo der", "left_a", "right_a"]
    pairs = [["ojo der", "ojo izq"]]
    assert flip_order(with_sides(names, pairs)) == [2, 1, 0, 4, 3]
    assert with_sides(names, []) == names
