import numpy as np

from keras_transformer.data import image_batches

IMAGES = np.arange(5 * 6 * 6, dtype="uint8").reshape(5, 6, 6, 1) + 1
LABELS = np.arange(5)


def test_every_image_occurs_once_per_epoch_with_its_label():
    for shuffle in (False, True):
        dataset = image_batches(IMAGES, LABELS, 2, shuffle=shuffle)
        assert len(dataset) == 3
        orders = []
        for _ in range(2):
            batches = list(dataset.as_numpy_iterator())
            assert [len(labels) for _, labels in batches] == [2, 2, 1]
            images, labels = (np.concatenate(part) for part in zip(*batches, strict=True))
            np.testing.assert_array_equal(images, IMAGES[labels])
            orders.append(labels.tolist())
        assert sorted(orders[0]) == LABELS.tolist()
        assert (orders[0] == orders[1]) == (not shuffle)
    assert images.dtype == "uint8"


def test_each_image_is_shifted_independently_within_the_limit():
    dataset = image_batches(IMAGES.repeat(20, 0), LABELS.repeat(20), 100, shift=1, shuffle=False)
    moves = set()
    for image, original in zip(next(iter(dataset))[0].numpy(), IMAGES.repeat(20, 0), strict=True):
        padded = np.pad(original, [(1, 1), (1, 1), (0, 0)])
        found = [
            (y, x) for y in range(3) for x in range(3) if np.array_equal(padded[y : y + 6, x : x + 6], image)
        ]
        assert len(found) == 1
        moves.add(found[0])
    assert len(moves) == 9


def test_half_of_the_images_are_flipped():
    images = IMAGES[:1].repeat(400, 0)
    flipped = next(iter(image_batches(images, np.zeros(400), 400, flip=True)))[0].numpy()
    mirrored = (flipped == images[:, :, ::-1]).all((1, 2, 3))
    assert 140 < mirrored.sum() < 260
    np.testing.assert_array_equal(flipped[~mirrored], images[~mirrored])


def test_multi_label_targets_are_accepted():
    several = np.eye(5, 3, dtype="float32")
    for images, labels in image_batches(IMAGES, several, batch_size=2):
        np.testing.assert_array_equal(labels, several[(images[:, 0, 0, 0] - 1) // 36])
