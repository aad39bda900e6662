"""Numbers in Prometheus' own format."""

from bertie.serve.metrics import Histogram, Metrics
from tests.serve.servers import Server


def test_buckets_count_all_that_is_at_most_as_large() -> None:
    one = Histogram(name="h", help="Some.", bounds=(1, 2.5))
    for value in (0, 1, 1.5, 9):
        one.see(value, model="m")
    assert list(one.lines()) == [
        "# HELP h Some.",
        "# TYPE h histogram",
        'h_bucket{model="m",le="1"} 2',
        'h_bucket{model="m",le="2.5"} 3',
        'h_bucket{model="m",le="+Inf"} 4',
        'h_sum{model="m"} 11.5',
        'h_count{model="m"} 4',
    ]


def test_large_counts_are_written_out() -> None:
    metrics = Metrics()
    metrics.tokens.add(12_345_678, model="m")
    metrics.tokens.add(1, model="m")
    assert 'bertie_tokens_total{model="m"} 12345679\n' in metrics.write()


def test_every_number_has_a_type_and_every_line_an_end() -> None:
    text = Metrics().write()
    names = [line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")]
    assert len(set(names)) == len(names) and text.endswith("\n")
    assert {"bertie_request_seconds", "bertie_batch_texts", "bertie_tokens_total"} <= set(names)


def test_metrics_count_what_happens(server: Server) -> None:
    before = server.metrics()
    server.post("/v1/mood/classify", {"texts": ["a", "b", "c"]})
    server.post("/v1/made-up-name/classify", {"texts": "a"})
    after = server.metrics()

    def grown(name: str) -> float:
        return after[name] - before.get(name, 0)

    labels = '{model="mood",verb="classify"'
    assert grown(f'bertie_requests_total{labels},status="200"}}') == 1
    assert grown(f"bertie_request_seconds_count{labels}}}") == 1
    assert grown(f'bertie_request_seconds_bucket{labels},le="+Inf"}}') == 1
    assert grown('bertie_texts_total{model="mood"}') == 3
    assert grown('bertie_batch_texts_sum{model="mood"}') == 3
    assert after["process_resident_memory_bytes"] > 1e7
    assert not any("made-up" in name for name in after)
