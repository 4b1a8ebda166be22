"""What the engine process sends and receives, over queues inside this process."""

from fastdeploy.inter_communicator.zmq_server import ZmqIpcClient, ZmqIpcServer, endpoint

__all__ = ["ZmqIpcClient", "ZmqIpcServer", "endpoint"]
