"""Photographs in a folder per class, as ImageNet has them: listed, decoded by Pillow, cropped, read by workers."""
