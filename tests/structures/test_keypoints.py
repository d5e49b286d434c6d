from __future__ import annotations

import torch
from torchvision.models.detection.roi_heads import keypoints_to_heatmap

from detlite.ops import heatmap_peaks
from detlite.structures.keypoints import flip_order, to_heatmap_cells


def boxes(count: int) -> torch.Tensor:
    low = torch.rand(count, 2) * 50
    return torch.cat([low, low + 0.3 + torch.rand(count, 2) * 60], dim=1)


def test_cells_are_torchvisions():
    regions = boxes(40)
    keypoints = torch.rand(40, 17, 3) * 110
    keypoints[..., 2] = torch.randint(0, 3, (40, 17))
    keypoints[:, 0, :2] = regions[:, 2:]  # the far corner
    keypoints[:, 1, :2] = regions[:, :2]
    wanted, valid = keypoints_to_heatmap(keypoints, regions, 56)
    cells, found = to_heatmap_cells(keypoints, regions, 56)
    assert torch.equal(found, valid.bool())
    assert torch.equal(cells, wanted)
    assert 40 < found.sum() < 40 * 17


def test_far_edge_belongs_to_the_last_cell():
    region = torch.tensor([[10.0, 20, 30, 60]])
    points = torch.tensor([[[30.0, 60, 2], [10, 20, 2], [30, 20, 1], [29.99, 40, 0]]])
    cells, valid = to_heatmap_cells(points, region, 4)
    assert cells.tolist() == [[15, 0, 3, 0]]
    assert valid.tolist() == [[True, True, True, False]]


def test_round_trip_through_a_map():
    region = torch.tensor([[100.0, 50, 212, 162]])
    points = torch.tensor([[[130.0, 60, 2], [200, 160, 2]]])
    cells, _ = to_heatmap_cells(points, region, 56)
    maps = torch.zeros(1, 2, 56 * 56).scatter(2, cells[..., None], 10.0).view(1, 2, 56, 56)
    found, _ = heatmap_peaks(maps, region)
    assert (found[..., :2] - points[..., :2]).abs().max() <= 1.5  # a cell is two pixels


def test_no_regions():
    cells, valid = to_heatmap_cells(torch.zeros(0, 17, 3), torch.zeros(0, 4), 56)
    assert cells.shape == valid.shape == (0, 17)


def test_left_and_right_change_places():
    names = ["nose", "left_eye", "right_eye", "left_hip", "tail", "right_hip", "left_paw"]
    assert flip_order(names) == [0, 2, 1, 5, 4, 3, 6]
    assert flip_order([]) == []
