"""Join images to contact sheets."""

from collections.abc import Sequence

from PIL import Image, ImageDraw, ImageFont


def contact_sheet(
    groups: Sequence[Sequence[Image.Image]],
    headings: Sequence[str] = (),
    width: int = 1600,
    row_height: int = 400,
    gap: int = 8,
) -> Image.Image:
    """Arrange groups of images in rows on white.

    The images of a row have the same height, and a full row has the width of the sheet.

    Args:
        groups: images that stay next to each other.
        headings: a text above each image of a group, the same for all groups.
        width: of the sheet, in pixels.
        row_height: of a row that is not full, in pixels. Other rows are at most 1.4
            times as high.
        gap: pixels between the images, and around them.
    """
    if not groups:
        raise ValueError("a contact sheet needs at least one image")
    rows: list[tuple[list[Image.Image], int]] = []
    row: list[Image.Image] = []
    for group in groups:
        row += group
        aspect = sum(image.width / image.height for image in row)
        height = (width - gap * (len(row) + 1)) / aspect
        if height <= 1.4 * row_height or group is groups[-1]:
            height = min(height, row_height) if group is groups[-1] else height
            rows.append((row, max(1, round(height))))
            row = []
    above = 32 if headings else gap
    sheet = Image.new("RGB", (width, sum(height + above for _, height in rows) + gap), "white")
    draw, y = ImageDraw.Draw(sheet), 0
    for row, height in rows:
        x, y = gap, y + above
        for number, image in enumerate(row):
            size = max(1, round(height * image.width / image.height)), height
            if headings:
                text = headings[number % len(headings)]
                room = size[0] / ImageFont.load_default(20).getlength(text)
                draw.text(
                    (x, y - 6),
                    text,
                    "black",
                    ImageFont.load_default(max(20 * min(room, 1), 1)),
                    anchor="ls",
                )
            sheet.paste(image.resize(size, Image.Resampling.LANCZOS), (x, y))
            x += size[0] + gap
        y += height
    return sheet


def side_by_side(images: Sequence[Image.Image], gap: int = 6) -> Image.Image:
    """Join images of any size in a row on white."""
    width = sum(image.width + gap for image in images) - gap
    joined = Image.new("RGB", (width, max(image.height for image in images)), "white")
    x = 0
    for image in images:
        joined.paste(image, (x, (joined.height - image.height) // 2))
        x += image.width + gap
    return joined
