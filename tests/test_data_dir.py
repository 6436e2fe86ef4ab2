from pathlib import Path

import platformdirs

from meshai.config import data_dir


def test_a_service_keeps_its_files_in_the_first_state_folder_systemd_gives_it() -> None:
    assert data_dir({"STATE_DIRECTORY": "/var/lib/meshai:/var/lib/other"}) == Path("/var/lib/meshai")


def test_a_user_keeps_files_in_the_data_folder() -> None:
    expected = platformdirs.user_data_path("meshai")
    assert data_dir({}) == expected
    assert data_dir({"STATE_DIRECTORY": ""}) == expected
