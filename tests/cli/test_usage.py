"""Help, and wrong usage of every command."""

from tests.lib.rows import each


@each(
    ("arguments", "why"),
    [
        ([], "COMMAND"),
        (["nothing"], "nothing"),
        (["--verison"], "--verison"),
        (["demo", "--repeat", "0"], "from 1"),
        (["inspect", "key:zz"], "'zz'"),
        (["inspect", "key:0"], "other than 0"),
        (["inspect", "msqid:-1"], "msqid -1"),
        (["inspect", "99999999999"], "32 bits"),
        (["inspect", "--", "-99999999999"], "32 bits"),
        (["inspect", "1", "--index", "x"], "from 0"),
        (["inspect", "1", "--index", "9" * 20], "from 0"),
        (["explain", ""], "empty name"),
        (["explain", "-", "cmpl-1"], "and -"),
        (["inspect", "1", "--layout", "1,2"], "four numbers"),
        (["inspect", "1", "--layout", "0,20,6,256"], "max_batch = 0"),
        (["record", "name", "file"], "queue id"),
        (["record", "1", "file", "--seconds", "0"], "above 0"),
        (["record", "1", "file", "--seconds", "soon"], "above 0"),
        (["record", "1", "file", "--seconds", "1e308"], "below 1,000,000,000"),
        (["replay", "file", "1", "--speed", "2", "--full-speed"], "not allowed"),
    ],
)
def test_wrong_usage_ends_with_2_and_names_the_value(run, arguments, why):
    status, out, err = run(*arguments)
    assert status == 2
    assert out == ""
    assert why in err.splitlines()[-1]


def test_an_argument_that_a_command_does_not_have_shows_what_it_has(run):
    """`inspect 8002` is right: of `doctor 8002` the usage says that it is `--queue-id`."""
    status, out, err = run("doctor", "8002")
    assert (status, out) == (2, "")
    assert "--queue-id" in err
    assert err.splitlines()[-1] == "fd-postproc doctor: error: unrecognized arguments: 8002"
