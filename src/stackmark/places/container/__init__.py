"""A container of podman or docker as a place: an image, or, without any image, the host's own software in a container."""
