// models_zoo.h: one factory per model, for the table in models.cc. Each draws its weights from
// torch's default CPU generator.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "apps/train/models.h"

namespace thinwire::train {

// models_image.cc
std::shared_ptr<Model> make_mlp(const Problem& problem);
std::shared_ptr<Model> make_cnn(const Problem& problem);
std::shared_ptr<Model> make_resnet20(const Problem& problem);
std::shared_ptr<Model> make_resnet18(const Problem& problem);
std::shared_ptr<Model> make_resnet110(const Problem& problem);
std::shared_ptr<Model> make_resnet50(const Problem& problem);
std::shared_ptr<Model> make_alexnet(const Problem& problem);
std::shared_ptr<Model> make_vgg16(const Problem& problem);

// models_text.cc
std::shared_ptr<Model> make_lstm(const Problem& problem);
std::shared_ptr<Model> make_lstm650(const Problem& problem);
std::shared_ptr<Model> make_lstm1500(const Problem& problem);
std::shared_ptr<Model> make_transformer(const Problem& problem);

// models_speech.cc
std::shared_ptr<Model> make_recognizer(const Problem& problem);

}  // namespace thinwire::train
