"""The schedule thread's questions on FastDeploy's own manager and task queue."""

import pytest

from tests.lib.real_tree import each_tree, run

pytestmark = pytest.mark.fastdeploy

PROGRAM = """
import json, sys, threading
from fastdeploy.inter_communicator import EngineWorkerQueue
from fd_postproc.fastdeploy.engine.scheduling import FetchedTasks
from tools.accept import manager_rounds

found = {"rounds": manager_rounds.first_difference(60, lambda *_: None)}

address = sys.argv[1]
server = EngineWorkerQueue(address=address, is_server=True, num_client=2)
engine, *workers = [EngineWorkerQueue(address=address, num_client=2, client_id=one) for one in (0, 0, 1)]
ours, told = FetchedTasks(engine), []
for number in range(40):
    told.append((ours.exist_tasks(), ours.exist_tasks(), engine.exist_tasks()))
    putting = threading.Thread(target=ours.put_tasks, args=(([f"task {number}"], 1),))
    putting.start()
    while putting.is_alive():
        ours.exist_tasks()
    putting.join()
    told.append((not ours.exist_tasks(), not ours.exist_tasks(), not engine.exist_tasks()))
    assert [one.get_tasks()[0] for one in workers] == [[([f"task {number}"], 1)]] * 2
found["answers"] = sum(one != (False, False, False) for one in told)
server.cleanup()
print("told: " + json.dumps(found))
"""


@each_tree
def test_rounds_and_tasks(tree, tmp_path):
    found, _ = run(tree, PROGRAM, tmp_path / "tasks", folder=tmp_path)
    assert found == {"rounds": "", "answers": 0}
