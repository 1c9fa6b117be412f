"""The package against a listener: what it says, and that nothing of it reaches the training loop."""

import asyncio
import json
import logging
import os
import pickle
import threading
import time
import unittest

from .listener import Listener, eventually, fresh


class Odd:
    """Raises whatever is asked of it."""

    def fail(self, *_):
        raise RuntimeError("CUDA error")

    __index__ = __float__ = __bool__ = __str__ = __repr__ = __iter__ = __len__ = __lt__ = __gt__ = fail


ODD = ("", "x", "a/b", "\ud800", b"x", 5, -1, 2**80, 1.5, float("nan"), True, [], [1], {"a": [1]}, {1: 2}, object(), Odd())


def call_all(gpurun, odd):
    """Every public function with this value for every argument."""
    with gpurun.tag(odd), gpurun.step(odd, samples=odd, first_of_epoch=odd):
        pass
    gpurun.tag(odd)(lambda: None)()
    gpurun.step(odd)
    gpurun.step(1, samples=odd)
    gpurun.epoch(odd)
    gpurun.log(odd)
    gpurun.log({"a": odd}, step=odd)
    gpurun.log(odd, odd, odd, a=odd)
    gpurun.log({"a": 1}, every=odd)
    if not isinstance(odd, (list, dict)):
        gpurun.log({odd: 1})
    gpurun.clear(odd)
    gpurun.connect()
    gpurun.is_active()
    gpurun.dropped()
    answers = [gpurun.snapshot(0.0, odd, odd), gpurun.snapshot(0.0, parts=odd), gpurun.snapshot(0.0, metrics=odd)]
    # Only what is no time to wait: a number would be waited for.
    if not isinstance(odd, (int, float)):
        answers += [gpurun.collect(odd), gpurun.snapshot(odd)]
    return answers


class Outside(unittest.TestCase):
    def check_silent(self, gpurun):
        self.assertFalse(gpurun.is_active())
        with gpurun.tag("a"), gpurun.step(1):
            pass
        gpurun.step(2)
        gpurun.epoch()
        gpurun.log({"x": 1.0})
        gpurun.log(loss=3, step="x")
        gpurun.step("x")
        gpurun.clear()
        self.assertEqual((gpurun.collect(), gpurun.snapshot(), gpurun.dropped()), ({}, {}, 0))
        self.assertEqual(gpurun.tag("f")(lambda x: x + 1)(1), 2)

    def test_no_socket_named(self):
        self.check_silent(fresh(None))

    def test_odd_arguments_never_raise_and_nothing_is_said(self):
        gpurun = fresh(None)
        with self.assertLogs("gpurun", logging.WARNING) as logs:
            logging.getLogger("gpurun").warning("only this")
            for odd in ODD:
                self.assertTrue(all(answer == {} for answer in call_all(gpurun, odd)), type(odd))
        self.assertEqual(len(logs.records), 1, logs.output)

    def test_socket_gone_or_no_socket(self):
        for path in ("/nonexistent/socket", "/dev/null", "", "x" * 300, "/tmp"):
            with self.subTest(path):
                self.check_silent(fresh(path))


class Inside(unittest.TestCase):
    def setUp(self):
        self.listener = Listener()
        self.addCleanup(self.listener.close)
        self.gpurun = fresh(self.listener.path)

    def said(self, last_step):
        """All messages after the hello, up to and including the mark of ``last_step``."""
        self.gpurun.step(last_step)
        self.listener.until(lambda l: any(m.get("step") == last_step for m in l.of("step")))
        return [m for _, m in self.listener.messages if m["op"] != "hello"][:-1]

    def test_hello_names_the_process(self):
        self.assertTrue(self.gpurun.is_active())
        self.listener.until(lambda l: l.messages)
        hello = self.listener.messages[0][1]
        self.assertEqual(hello, {"op": "hello", "version": 1, "pid": os.getpid()})

    def test_tags_nest_and_end_by_their_own_number(self):
        before = time.monotonic_ns()
        with self.gpurun.tag("train"):
            with self.gpurun.tag("batch"):
                pass
        said = self.said(99)
        self.assertEqual([m["op"] for m in said], ["begin", "begin", "end", "end"])
        self.assertEqual([m.get("tag") for m in said], ["train", "batch", None, None])
        outer, inner = said[0]["span"], said[1]["span"]
        self.assertEqual([m["span"] for m in said], [outer, inner, inner, outer])
        stamps = [m["t"] for m in said]
        self.assertEqual(stamps, sorted(stamps))
        self.assertTrue(before <= stamps[0] and stamps[-1] <= time.monotonic_ns())

    def test_a_tag_ends_when_the_body_raises(self):
        with self.assertRaises(KeyError):
            with self.gpurun.tag("train"):
                raise KeyError
        self.assertEqual([m["op"] for m in self.said(99)], ["begin", "end"])

    def test_decorators_of_every_kind_of_function(self):
        tag = self.gpurun.tag

        @tag("plain")
        def plain(x):
            """Doc."""
            return x if x == 0 else plain(x - 1)

        @tag("coroutine")
        async def coroutine():
            return 1

        @tag("generator")
        def generator():
            yield 1
            return 2

        self.assertEqual((plain(1), asyncio.run(coroutine()), list(generator())), (0, 1, [1]))
        self.assertEqual((plain.__name__, plain.__doc__), ("plain", "Doc."))
        said = self.said(99)
        names = [m.get("tag") for m in said]
        self.assertEqual(names, ["plain", "plain", None, None, "coroutine", None, "generator", None])
        # Recursive use: two numbers, so that the inner end is not the outer one's.
        self.assertNotEqual(said[0]["span"], said[1]["span"])

    def test_what_cannot_be_a_tag_is_ignored_and_said_once(self):
        with self.assertLogs("gpurun", logging.WARNING) as logs:
            for _ in range(3):
                for name in ("", "a/b", "a\nb", "x" * 129, None, 5, "\udc80"):
                    with self.gpurun.tag(name):
                        pass
        self.assertEqual(len(logs.records), 7)
        self.assertEqual(self.said(99), [])

    def test_a_step_is_a_mark_or_a_span(self):
        t0 = time.monotonic_ns()
        self.gpurun.step(5)
        with self.gpurun.step(6):
            inside = time.monotonic_ns()
        with self.gpurun.step():
            pass
        with self.assertRaises(ValueError):
            with self.gpurun.step(8):
                raise ValueError
        self.gpurun.epoch(3)
        self.gpurun.step(9, samples=64)
        self.gpurun.epoch()
        self.gpurun.epoch("four")
        with self.gpurun.step(10, samples=-1):
            pass
        with self.gpurun.step("eleven"):
            pass
        said = self.said(99)
        numbers = [(m["op"], m.get("step"), m.get("epoch"), m.get("samples")) for m in said]
        begin, end = "step_begin", "step"
        expected = [(end, 5, None, None), (begin, 6, None, None), (end, 6, None, None), (begin, 7, None, None)]
        expected += [(end, 7, None, None), (begin, 8, None, None), ("epoch", None, 3, None), (end, 9, None, 64)]
        expected += [("epoch", None, None, None)] * 2 + [(begin, 10, None, None), (end, 10, None, None)]
        self.assertEqual(numbers, expected)
        mark, begin, span = said[:3]
        self.assertNotIn("began", mark)
        self.assertEqual(begin["t"], span["began"])
        self.assertTrue(t0 <= mark["t"] <= span["began"] <= inside <= span["t"])

    def test_scalars_are_numbers_and_may_be_not_finite(self):
        class Tensor:
            def __float__(self):
                return 0.5

        class Broken:
            def __float__(self):
                raise RuntimeError("CUDA error")

        with self.assertLogs("gpurun", logging.WARNING) as logs:
            self.gpurun.log({"a": 1, "t": Tensor(), "nan": float("nan"), "no": "x", "b": Broken()}, step=3)
            self.gpurun.log({"q" * 129: 1, "": 2, "a\nb": 3, "good": 4}, inf=float("-inf"))
        self.assertEqual(len(logs.records), 2)
        said = self.said(99)
        self.assertEqual((said[0]["values"], said[0]["step"]), ({"a": 1.0, "t": 0.5, "nan": None}, 3))
        self.assertEqual(said[1]["values"], {"good": 4.0, "inf": None})

    def test_scalars_as_keywords(self):
        self.gpurun.log(loss=3, acc=0.5, step=7)
        self.gpurun.log({"loss": 1}, loss=2)
        self.gpurun.log()
        self.gpurun.log({})
        said = self.said(99)
        self.assertEqual((said[0]["values"], said[0]["step"]), ({"loss": 3.0, "acc": 0.5}, 7))
        self.assertEqual([m["values"] for m in said[1:]], [{"loss": 2.0}])

    def test_many_scalars_go_in_several_messages(self):
        self.gpurun.log({f"layers.{n}.attention.weight/norm": n for n in range(10_000)}, step=1)
        said = self.said(99)
        self.assertGreater(len(said), 1)
        together = {name: value for m in said for name, value in m["values"].items()}
        self.assertEqual(len(together), 10_000)
        self.assertEqual({m["step"] for m in said}, {1})
        self.assertTrue(all(len(json.dumps(m, separators=(",", ":"))) < 64 * 1024 for m in said))

    def test_values_are_read_every_so_many_steps_only(self):
        read = []

        class Tensor:
            def __init__(self, n):
                self.n = n

            def __float__(self):
                read.append(self.n)
                return float(self.n)

        for n in range(1, 7):
            with self.gpurun.step(n):
                self.gpurun.log({"inside": Tensor(n)}, every=3)
            self.gpurun.log(after=Tensor(10 * n), step=n, every=2)
            self.gpurun.log({"last": Tensor(100 * n)}, every=5)
        self.said(99)
        self.assertEqual(read, [20, 3, 40, 500, 6, 60])
        logs = [(m.get("step"), m["values"]) for m in self.listener.of("log")]
        self.assertEqual(logs[:2], [(2, {"after": 20.0}), (None, {"inside": 3.0})])

    def test_nonsense_never_raises_and_is_said_once(self):
        gpurun = self.gpurun

        class Broken:
            def __index__(self):
                raise RuntimeError("CUDA error")

        with self.assertLogs("gpurun", logging.WARNING) as logs:
            for nonsense in ("x", 2**80, 1.5, None, Broken()):
                if nonsense is not None:
                    gpurun.step(nonsense)
                    with gpurun.step(nonsense):
                        pass
                gpurun.log({"good": 1}, step=nonsense)
            gpurun.log([1])
            gpurun.log([1], a=2)
            gpurun.log(5)
            gpurun.log({"a": 1}, every="x")
        self.assertEqual(len(logs.records), 3)
        self.assertIn("a step's number must be an integer of 64 bits, not 'x'", logs.output[0])
        gpurun.clear(object())
        gpurun.clear("train")
        self.assertTrue(gpurun.is_active())
        logged = [m for m in self.said(99) if m["op"] == "log"]
        self.assertEqual([(m["values"], m.get("step")) for m in logged], [({"good": 1.0}, None)] * 5)

    def test_odd_arguments_never_raise(self):
        logging.getLogger("gpurun").setLevel(logging.CRITICAL)
        self.addCleanup(logging.getLogger("gpurun").setLevel, logging.NOTSET)
        for odd in ODD:
            call_all(self.gpurun, odd)
        self.gpurun.log({"before": 1, Odd(): 2, "after": 3})
        self.assertTrue(self.gpurun.is_active())
        logged = [m["values"] for m in self.said(99) if m["op"] == "log"]
        self.assertEqual(logged[-1], {"before": 1.0, "after": 3.0})

    def test_one_name_is_a_list_of_one_and_what_is_no_list_is_left_out(self):
        with self.assertLogs("gpurun", logging.WARNING) as logs:
            self.gpurun.snapshot(0.0, parts="gpus", metrics="power_usage (W)")
            self.gpurun.snapshot(0.0, parts=("gpus", "host"), metrics=[])
            self.gpurun.snapshot(0.0, parts=5, metrics=["a", 5])
            self.gpurun.snapshot(0.0, parts=[1])
        self.assertEqual(len(logs.records), 2, logs.output)
        asked = [(m.get("parts"), m.get("metrics")) for m in self.said(99) if m["op"] == "snapshot"]
        one, several = (["gpus"], ["power_usage (W)"]), (["gpus", "host"], [])
        self.assertEqual(asked, [one, several, (None, None), (None, None)])

    def test_threads_never_tear_a_line(self):
        def work(n):
            for i in range(500):
                self.gpurun.step(n * 1000 + i)
                with self.gpurun.tag(f"t{n}"):
                    self.gpurun.log({f"loss{n}": i})

        threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        # The listener may be slower than eight threads; what it was sent are whole lines all the same.
        dropped = self.gpurun.dropped()
        eventually(lambda: self.gpurun._client.send(b'{"op":"done"}\n'))
        self.listener.until(lambda l: l.of("done"))
        self.assertEqual({number for number, _ in self.listener.messages}, {0})
        begun = [m["span"] for m in self.listener.of("begin")]
        ended = [m["span"] for m in self.listener.of("end")]
        self.assertEqual(len(begun), len(set(begun)))
        self.assertEqual(sorted(begun), sorted(ended))
        steps = len(self.listener.of("step")) + len(self.listener.of("log"))
        self.assertEqual(8 * 500 * 3 - dropped, steps + len(begun))

    def test_rank_of_the_launcher(self):
        # Which variable decides is compared with gpurun's own list in tests/integration/python.rs.
        for environment, rank in (({"RANK": "3", "LOCAL_RANK": "1"}, 3), ({"RANK": "-1"}, None)):
            with self.subTest(environment):
                seen = len(self.listener.messages)
                self.assertTrue(fresh(self.listener.path, **environment).is_active())
                self.listener.until(lambda l: len(l.messages) > seen)
                self.assertEqual(self.listener.messages[-1][1].get("rank"), rank)


class Trouble(unittest.TestCase):
    def test_a_gpurun_that_never_reads_costs_marks_not_time(self):
        listener = Listener(reads=False)
        self.addCleanup(listener.close)
        gpurun = fresh(listener.path)
        with gpurun.tag("train"):
            # Far more than any socket buffer holds; a blocking send would hang here for good.
            for n in range(50_000):
                gpurun.step(n)
                with gpurun.tag("batch"):
                    pass
        self.assertTrue(gpurun.is_active())
        dropped = gpurun.dropped()
        self.assertGreater(dropped, 0)
        # What it does read later are whole lines, and every tag that it heard begin also ends.
        listener.until(lambda l: l.connections)
        reader = threading.Thread(target=listener.read, args=(0,))
        reader.start()
        gpurun_client = gpurun._client
        while True:
            with gpurun_client._sending:
                gpurun_client._flush()
                if not gpurun_client._rest:
                    break
        gpurun_client._lose()
        reader.join()
        begun = {m["span"] for m in listener.of("begin")}
        ended = {m["span"] for m in listener.of("end")}
        self.assertGreater(len(begun), 1)
        self.assertEqual(begun - ended, set())
        # gpurun hears how much it missed.
        self.assertEqual(sum(m["dropped"] for m in listener.of("dropped")), dropped)

    def test_what_is_kept_goes_out_though_nothing_more_is_said(self):
        listener = Listener(reads=False)
        self.addCleanup(listener.close)
        gpurun = fresh(listener.path)
        said = 0
        while not gpurun._client._rest:
            gpurun.log({"loss": said})
            said += 1
        for _ in range(100):
            gpurun.log({"loss": said})
            said += 1
        # The end of the interpreter waits only for a short time.
        gpurun._client._last()
        self.assertTrue(gpurun._client._rest)
        listener.until(lambda l: l.connections)
        threading.Thread(target=listener.read, args=(0,), daemon=True).start()
        listener.until(lambda l: len(l.of("log")) == said)
        self.assertEqual([m["values"]["loss"] for m in listener.of("log")], [float(n) for n in range(said)])
        self.assertEqual(gpurun.dropped(), 0)
        eventually(lambda: gpurun._client._flusher is None)

    def test_gpurun_dies_in_mid_training(self):
        listener = Listener()
        gpurun = fresh(listener.path)
        with gpurun.tag("train"):
            gpurun.step(1)
            listener.until(lambda l: l.of("step"))
            listener.close()
            for n in range(2, 1000):
                with gpurun.step(n):
                    pass
            self.assertFalse(gpurun.is_active())
            self.assertEqual((gpurun.collect(), gpurun.snapshot()), ({}, {}))
        gpurun.log({"a": 1})

    def test_gpurun_dies_while_it_is_asked(self):
        listener = Listener(answer=lambda m: listener.connections[0].shutdown(2) if m["op"] == "collect" else None)
        self.addCleanup(listener.close)
        gpurun = fresh(listener.path)
        self.assertEqual(gpurun.collect(timeout=50), {})
        self.assertFalse(gpurun.is_active())

    def test_an_answer_that_does_not_come_is_not_waited_for_for_ever(self):
        listener = Listener()
        self.addCleanup(listener.close)
        gpurun = fresh(listener.path)
        for _ in range(6):
            self.assertEqual(gpurun.snapshot(timeout=0.01), {})
        listener.until(lambda l: len(l.of("snapshot")) == 4)
        # From here on it does not even ask: an hour's time-out returns at once.
        self.assertEqual(gpurun.collect(timeout=3600), {})
        self.assertTrue(gpurun.is_active())

    def test_answers_find_their_requests(self):
        results = {
            "collect": {"tag": "run/a", "duration_s": 1, "metrics": {"run/a/host/x (%)/mean": 2.0, "n": None}},
            "snapshot": {"gpus": []},
        }
        listener = Listener(answer=lambda m: results.get(m["op"]))
        self.addCleanup(listener.close)
        gpurun = fresh(listener.path)
        early = gpurun._client.request("snapshot")
        collected = gpurun.collect(timeout=60)
        self.assertEqual(collected.pop("run/a/timestamp") > 1e9, True)
        self.assertEqual(collected, {"run/a/host/x (%)/mean": 2.0})
        self.assertEqual(gpurun._client.take(early), {"gpus": []})
        self.assertEqual(gpurun._client.take(early), None)
        self.assertEqual(gpurun.snapshot(timeout=60, parts=["gpus"], metrics=["a"]), {"gpus": []})
        self.assertEqual(listener.of("snapshot")[-1]["parts"], ["gpus"])

    def test_garbage_for_an_answer(self):
        for reply in (b"garbage\n", b"{}\n", b"[]\n", b'{"id":1,"ok":true,"result":7}\n', b"\xff\n", b"null\n"):
            with self.subTest(reply):
                listener = Listener(answer=lambda m: reply if "id" in m else None)
                gpurun = fresh(listener.path)
                self.assertEqual(gpurun.collect(timeout=0.05), {})
                listener.close()

    @unittest.skipUnless(hasattr(os, "fork"), "needs fork")
    def test_a_forked_child_does_not_speak_for_its_parent(self):
        listener = Listener()
        self.addCleanup(listener.close)
        gpurun = fresh(listener.path)
        with gpurun.tag("train"):
            child = os.fork()
            if child == 0:
                status = 1
                try:
                    gpurun.step(666)
                    gpurun.log({"child": 1})
                    silent = not gpurun.is_active()
                    # A rank that was forked may speak, for itself.
                    speaks = gpurun.connect()
                    gpurun.step(777)
                    status = 0 if silent and speaks else 2
                finally:
                    os._exit(status)
            self.assertEqual(os.waitpid(child, 0)[1], 0)
            gpurun.step(1)
        listener.until(lambda l: len(l.of("end")) == 1 and any(m.get("step") == 777 for m in l.of("step")))
        by_connection = {}
        for number, message in listener.messages:
            by_connection.setdefault(number, []).append(message)
        parent, own = by_connection[0], by_connection[1]
        self.assertEqual([m["op"] for m in parent], ["hello", "begin", "step", "end"])
        self.assertEqual([m["op"] for m in own], ["hello", "step"])
        self.assertNotEqual(parent[0]["pid"], own[0]["pid"])
        # The child kept no copy of the parent's connection: it ends when the parent lets go of it.
        gpurun._client._lose()
        listener.until(lambda l: 0 in l.ended)

    def test_messages_stay_within_the_documented_schema(self):
        listener = Listener()
        self.addCleanup(listener.close)
        gpurun = fresh(listener.path, RANK="0")
        with gpurun.tag("a"):
            gpurun.clear("a")
            gpurun.step(1)
            gpurun.log({"a": 1.0}, step=1)
        gpurun._client.request("collect")
        gpurun._client.request("snapshot", parts=["gpus"])
        listener.until(lambda l: len(l.messages) == 8)
        path = os.path.join(os.path.dirname(__file__), "..", "..", "schemas", "control.v1.json")
        with open(path, encoding="utf-8") as file:
            definitions = json.load(file)["$defs"]
        for _, message in listener.messages:
            known = set(definitions[message["op"]]["properties"])
            # `collect` and `snapshot` carry the common stamp as well.
            self.assertLessEqual(set(message) - {"t"}, known, message)
            self.assertLessEqual(set(definitions[message["op"]]["required"]), set(message))


class Pickling(unittest.TestCase):
    def test_callbacks_travel_to_workers(self):
        fresh(None)
        from gpurun.huggingface import GpurunCallback
        from gpurun.lightning import GPUStatsMonitor

        for callback in (GPUStatsMonitor(fan_speed=True), GpurunCallback()):
            callback._progress.begin("train")
            copy = pickle.loads(pickle.dumps(callback))
            self.assertEqual(copy._progress._open, {})


if __name__ == "__main__":
    unittest.main()
