"""`tunecast nodes`."""

from __future__ import annotations

import json

from tunecast.cli import main as cli
from tunecast.hardware.links import links, nodes


def run(capsys, *argv):
    code = cli.main(["nodes", *argv])
    told = capsys.readouterr()
    return code, told.out, told.err


def test_all_of_them_a_line_each(capsys):
    code, out, err = run(capsys)
    assert (code, err) == (0, "")
    assert len(out.splitlines()) == 2 + len(nodes()) + 2
    assert "p5.48xlarge" in out
    assert "3200" in out


def test_words_narrow_them_down(capsys):
    code, out, _ = run(capsys, "AWS", "h100", "--json")
    assert code == 0
    told = json.loads(out)
    assert told["schema"] == "tunecast.nodes/1"
    assert [node["name"] for node in told["nodes"]] == ["p5.48xlarge"]
    assert told["nodes"][0]["inter_node_gbit_per_s"] == 3200


def test_one_machine_has_a_page_with_its_sources(capsys):
    code, out, _ = run(capsys, "dgx-a100-80gb")
    assert code == 0
    assert "not verified" in out
    assert "8 x a100-sxm-80gb" in out
    assert "checked 2026" in out


def test_a_whole_name_is_that_machine_alone(capsys):
    _, out, _ = run(capsys, "p5.48xlarge", "--json")
    assert len(json.loads(out)["nodes"]) == 1


def test_links(capsys):
    _, out, _ = run(capsys, "--links", "--json")
    assert [link["name"] for link in json.loads(out)["links"]] == list(links())
    _, out, _ = run(capsys, "--links", "rtx-4090")
    assert "host-pcie4-x16" in out
    assert "nvlink4" not in out


def test_nothing_that_matches_is_wrong_usage(capsys):
    code, out, err = run(capsys, "p5.48xlage")
    assert (code, out) == (2, "")
    assert "nearest: p5.48xlarge" in err


def test_a_card_that_no_described_machine_has_is_named_with_what_helps(capsys):
    for texts in (["rtx-5090"], ["RTX", "5090"], ["vast.ai", "rtx-5090"]):
        code, out, err = run(capsys, *texts)
        assert (code, out) == (2, "")
        assert "no machine with rtx-5090 is described" in err
        assert "host-pcie5-x16" in err and "hardware.interconnect" in err and "tunecast offers rtx-5090" in err
        assert "nearest" not in err
    _, _, err = run(capsys, "aws", "dgx-h200")
    assert "matches nothing" in err, "the machine is known, only not of that provider"
