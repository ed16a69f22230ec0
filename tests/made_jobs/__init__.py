"""Distributed jobs made by simulation, and the Flight Recorder dumps that they leave.

Every rank runs a program; a collective completes once all members reached it and agree.
Who waits where follows from the injected fault; nothing of it is typed in.
"""
