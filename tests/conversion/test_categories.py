"""What labels of published weights mean."""

from __future__ import annotations

from detlite.conversion.categories import categories_for


def test_categories_follow_from_their_number():
    assert [c["id"] for c in categories_for(81)][10:13] == [11, 13, 14]
    assert categories_for(91)[11] == {"id": 12, "name": "N/A"}
    assert categories_for(91)[89] == {"id": 90, "name": "toothbrush"}
    assert categories_for(21)[19] == {"id": 20, "name": "tvmonitor"}
    (person,) = categories_for(2, keypoints=True)
    assert (person["id"], person["name"]) == (1, "person")
    assert person["keypoints"][:3] == ["nose", "left_eye", "right_eye"]
    assert (len(person["keypoints"]), person["keypoints"][-1]) == (17, "right_ankle")
    assert categories_for(3) == [{"id": 1, "name": "class 1"}, {"id": 2, "name": "class 2"}]
