"""What the engine process sends and receives, over queues inside this process."""

from fastdeploy.inter_communicator.zmq_server import ZmqIpcServer

__all__ = ["ZmqIpcServer"]
