"""Nothing is written behind the buffer that JSON grows in, wherever in it something begins."""

from tests.lib.json_room import stays_inside
from tests.lib.rows import each

LONGEST_DOUBLE = -2.2250738585072014e-308


@each("n", [0, 1, 5, 100, 682, 683, 4096])
def test_texts_of_which_each_byte_takes_six(n):
    """With exactly the room that it takes, a byte less, and two quotes less."""
    for left in {0, 1, *(max(6 * n + more, 0) for more in range(-3, 4))}:
        if left < 3900:
            assert stays_inside()("string", left, n), left


@each("kind", ["bytes", "double", "integer"])
def test_whatever_is_left(kind):
    for left in range(60):
        assert stays_inside()(kind, left, 30, LONGEST_DOUBLE), left
