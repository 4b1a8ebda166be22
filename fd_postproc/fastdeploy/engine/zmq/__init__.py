"""Steps that come through FastDeploy's ZeroMQ socket."""
